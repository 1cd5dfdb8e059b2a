"""Scripts are read as bash reads them, or not at all."""

from __future__ import annotations

import shlex
import shutil
import subprocess
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hfdsl.interop.launches import ShellScript
from hfdsl.interop.shell_text import Hole, text_of
from hfdsl.interop.shell_values import read_script
from hfdsl.interop.text import ReadError, SourceText

HAS_BASH = shutil.which("bash") is not None


def read(text: str, **environment: str) -> ShellScript:
    return read_script(SourceText("run.sh", text), environment=environment)


def words(text: str, **environment: str) -> list[str | None]:
    """The words of the last command that a script starts; None for those that are not known."""
    return [text_of(word) for word in read(text, **environment).launches[-1].words]


def by_bash(text: str) -> list[str]:
    """The words as bash makes them: ``train`` prints its own."""
    script = "train() { printf '%s\\0' train \"$@\"; }\nexport -f train\n" + text
    process = subprocess.run(["bash", "-c", script], capture_output=True, check=True, env={"PATH": "/usr/bin:/bin"})
    return process.stdout.decode().split("\0")[:-1]


SCRIPTS = {
    "assignments": "N=8\nM=$N/x\ntrain a=$N b=${M} c=\"$N $M\"",
    "defaults": "train ${A:-1} ${B-two} \"${C:-x y}\" ${D:-x y} ${E:=5} $E",
    "empty defaults": "A=\ntrain ${A:-1} ${A-2} ${A:+3} ${A+4} \"${A}\"",
    "nested defaults": "A=3\ntrain ${B:-${C:-$A}} ${B:-a${A}b}",
    "continued lines": "train a=1 \\\n    b=2 \\\n  'c d'=3",
    "arrays": "X=; A=(a 'b c' \"d$X\")\nA+=(e)\ntrain \"${A[@]}\" \"${A[*]}\"",
    "an empty array": "A=()\ntrain \"${A[@]}\" x",
    "items of arrays": "A=(a 'b c' d); B=x\ntrain ${A[1]} \"${A[1]}\" ${A[0]:-e} ${A[7]:-e} ${B[0]} \"$A\"",
    "arrays with keys": "declare -A A=([n]=4 [the-key]='b c')\nA[m]=5; A[n]+=1\nK=9; A[\"k\"]=$K\n"
                        "train ${A[n]} \"${A[the-key]}\" ${A[m]:-e} ${A['k']}",
    "arithmetic": "a=4; b=$((a * 2 + 7 / 2 - 9 % 4))\ntrain $b $(( (a + 1) * 2 )) $((-7 / 2))",
    "quotes": "train 'single $A' \"double \\\"x\\\" \\$A\" a\\ b \"\"",
    "comments": "# A=1\nA=2 # three\ntrain $A x#y",
    "an if that is decided": "A=gpu\nif [ \"$A\" = gpu ]; then T=2; elif [ x = y ]; then T=3; else T=4; fi\ntrain $T",
    "double brackets": "A=1; B=\nif [[ -n \"$A\" && \"$B\" != x ]]; then T=2; else T=3; fi\ntrain $T",
    "numbers": "N=16\nif [ $N -gt 8 ]; then T=4; fi\nif (( N % 8 == 0 )); then U=1; fi\ntrain $T $U",
    "a case": "A=npu\ncase \"$A\" in\n gpu|cpu) T=1 ;;\n n*) T=2 ;;\n *) exit 1 ;;\nesac\ntrain $T",
    "and, or": "[ a = b ] && A=1\n[ a = a ] && B=2 || C=3\ntrain ${A:-none} $B ${C:-none}",
    "groups": "{ A=1; }\n( A=2; )\ntrain $A",
    "an array in a test": "A=(x)\nif true; then A+=(y); fi\ntrain ${A[@]}",
    "here-documents": "cat > /dev/null <<EOF\nA=wrong $( \nEOF\nA=right\ntrain $A",
    "exports": "export A=1 B=2\ndeclare C=3\ntrain $A $B $C",
    "appending": "A=x\nA+=y\ntrain $A",
    "redirections": "train a 2>&1 > /dev/stdout b < /dev/null",
    "shifting words": "A='one  two'\ntrain $A \"$A\"",
    "a function": "f() { local A=$2; B=$1; }\nA=x\nf 1 2\ntrain $A $B",
    "a function that trains": "run() { train a=$1 \"$@\"; }\nrun 1 'x y'",
    "a function that returns": "function f { A=1; return; A=2; }\nf\ntrain $A",
    "functions in functions": "g() { train $1$N; }\nf() { local N=2; shift; g \"$@\"; }\nN=1\nf a b",
    "a variable for a function": "f() { train $N; }\nN=1\nN=2 f",
    "an evaluated variable": "N=4\nA=\"train a=$N 'x y'\"\nA+=\" b=\\$N\"\nN=5\neval \"$A\"",
    "an evaluated assignment": "N=B\neval \"$N=3\"\neval 'C=$B' \"; D=4\"\ntrain $B $C $D",
    "the text of a shell": "export N=4\nbash -c 'train a=$N \"$1\" \"$@\"' name 'x y' z",
    "the text of another shell": "M='a b'\nenv X=1 bash -e -c \"train '$M' \\\n  'd\\\"e'\"",
    "a here-document of a shell": "N=4\nexport M=5\nbash <<END\ntrain $N \\$M 'x y' \"z\"\nEND",
    "a quoted here-document": "N=4\nexport M=5\nbash -s a <<'END' 2>&1\ntrain ${M}\nEND",
    "two here-documents": "cat <<A <<B > /dev/null; bash <<C\ntrain a\nA\ntrain b\nB\ntrain c\nC",
    "a here-string": "N=4\nbash <<< \"train $N\"",
    "a here-document that is read": "N=4\nread -r -d '' A <<END\ntrain \\\n  $N\nEND\nbash -c \"$A\"",
    "a variable for a shell": "N=4 bash -c 'eval \"train a=$N\"'",
    "a redirected shell": "exec 2>&1\ntrain a",
    "the end of a subshell": "(A=1; exit 1)\n{ A=2; exit 3; } | cat\ntrain ${A:-none}",
    "a loop over words": "for i in a 'b c'; do for j in 1 2; do A+=$i$j; done; done\ntrain $A $i",
    "a loop that ends early": "for i in 1 2 3; do [ $i = 3 ] && break; [ $i = 1 ] && continue; A=$i; done\ntrain $A",
    "a loop over options": "f() { while [[ $# -gt 0 ]]; do case \"$1\" in --b) B=$2; shift 2 ;; --t) T=$2; shift 2 ;;\n"
                           " *) break ;; esac; done; train $B $T \"$@\"; }\nf --b 8 --t 2 rest x",
    "a loop over arguments": "f() { for i; do A+=$i; done; train $A $#; }\nf a b",
    "a loop without arguments": "while [ -n \"$1\" ]; do A=$1; shift; done\nwhile getopts a: o; do A=1; done\n"
                                "train ${A:-none}",
    "patterns": "A=x/Y-32B-z; B=; [[ $A == *\"32B\"* ]] && B+=1; [[ \"$A\" != *7B* ]] && B+=2; [[ $A = x/? ]] || B+=3\n"
                "case $A in *\"-32\"*) B+=4 ;; esac\ntrain $B",
    "a loop until": "N=0; until [ $N -ge 3 ]; do N=$((N + 1)); done\ntrain $N",
    "a condition that trains": "if ! train a; then A=1; fi",
    "a chain of commands": "cd / && N=4 && train $N",
}  # fmt: skip


@pytest.mark.skipif(not HAS_BASH, reason="bash is not installed")
@pytest.mark.parametrize("name", SCRIPTS)
def test_words_are_those_of_bash(name: str) -> None:
    assert words(SCRIPTS[name]) == by_bash(SCRIPTS[name])


ATOMS = st.sampled_from(["a", "b1", "x y", "", "8", "-", "a=b", "[1,2]", "'", "\\", "*x", "ü", "#"])


@st.composite
def programs(draw: st.DrawFn) -> str:
    """Scripts of quoted values, defaults, arrays and decided conditions, which bash runs without an environment."""
    names, lines = ["A", "B", "C"], list[str]()
    for _ in range(draw(st.integers(1, 6))):
        name, value = draw(st.sampled_from(names)), draw(ATOMS)
        second_name = draw(st.sampled_from(names))
        lines.append(
            draw(
                st.sampled_from(
                    [
                        f"{name}={shlex.quote(value)}",
                        f'{name}="${{{second_name}:-{"d" if chr(39) in value else "e"}}}"',
                        f'{name}="${{{second_name}}}-$(( 3 * {len(value)} ))"',
                        f'if [ "${second_name}" = {shlex.quote(value)} ]; then {name}=t; else {name}=e; fi',
                        f'case "${second_name}" in {shlex.quote(value)}) {name}=1 ;; ?*) {name}=2 ;; esac',
                        f'[ -z "${second_name}" ] && {name}=empty || {name}="full$ {second_name}"',
                        f"{name}+={shlex.quote(value)}",
                    ]
                )
            )
        )
    return "A=; B=; C=\n" + "\n".join(lines) + '\ntrain "$A" "${B}" "${C:-none}"'


@pytest.mark.skipif(not HAS_BASH, reason="bash is not installed")
@given(programs())
def test_random_scripts_have_the_words_of_bash_or_unknown_ones(text: str) -> None:
    mine, theirs = words(text), by_bash(text)
    assert len(mine) == len(theirs)
    assert all(a is None or a == b for a, b in zip(mine, theirs, strict=True)), (text, mine, theirs)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("A=$(hostname)\ntrain $A", "only a shell knows $(hostname)"),
        ("A=`date`\ntrain $A", "only a shell knows `date`"),
        ("train $SLURM_NNODES", "'SLURM_NNODES' is a variable of the environment"),
        ("train $1", "'1' is an argument of the script"),
        ("if nvidia-smi; then A=1; else A=2; fi\ntrain $A", "'A' depends on the 'if' in line 1"),
        ("for i in $L; do A=$i; done\ntrain $A", "a loop assigns it"),
        ("for i in *.txt; do A=$i; done\ntrain $A", "a loop assigns it"),
        ("for ((i = 0; i < 2; i++)); do A=$i; done\ntrain $A", "a loop assigns it"),
        ("while true; do A=2; done\ntrain $A", "a loop assigns it"),
        ("while nvidia-smi; do A=2; done\ntrain $A", "a loop assigns it"),
        ("for i in 1 2; do A=$i; nvidia-smi && break; done\ntrain $A", "a loop assigns it"),
        ("for i in 1 2; do if nvidia-smi; then continue; fi; A=$i; done\ntrain $A", "a loop assigns it"),
        ("select i in 1 2; do A=$i; done\ntrain $A", "a loop assigns it"),
        ("if [ $# -lt 2 ]; then A=1; else A=2; fi\ntrain $A", "'A' depends on the 'if' in line 1"),
        ("f() { A=2; f; }\nA=1\nf\ntrain $A", "the function 'f' assigns it"),
        (
            "f() { if nvidia-smi; then return; fi; A=2; }\nA=1\nf\ntrain $A",
            "the function 'f' may return before it assigns it",
        ),
        ("f() { A=$1; }\nfor i in $L; do f $i; done\ntrain $A", "a loop assigns it"),
        ("A=1\nbash -c 'train $A'", "'A' is not exported to that shell"),
        ("export A=1\ndocker run image bash -c 'train $A'", "'A' is not exported to that shell"),
        ('eval "train a$B"', "'B' is a variable of the environment"),
        ('A=1\neval "$B" A\ntrain $A', "'eval' assigns it"),
        ("A=x-y\ntrain ${A//-/_}", "${A//-/_} is not followed"),
        ("A=(a b)\ntrain ${A[i]}", "${A[i]} is not followed"),
        ("A=(a b)\ntrain ${A[$i]}", "${A[$i]} is not followed"),
        ('declare -A A=([n]=4)\ntrain "${A[@]}"', "'A' is an array with keys"),
        ("declare -A A=([n]=4)\ntrain ${A[m]}", "'A' is an array with keys"),
        ("for i in $L; do A[n]=$i; done\ntrain ${A[n]}", "a loop assigns it"),
        ("read A\ntrain $A", "'read' assigns it"),
    ],
)
def test_what_only_a_run_knows_is_unknown_with_a_reason(text: str, reason: str) -> None:
    [hole] = [piece for piece in read(text).launches[-1].words[1] if isinstance(piece, Hole)]
    assert hole.reason == reason


def test_branches_that_agree_or_end_leave_values_known() -> None:
    text = "case $DEVICE in\n gpu) A=1; B=2 ;;\n npu) A=1; B=3 ;;\n *) exit 1 ;;\nesac\ntrain $A $B"
    assert words(text) == ["train", "1", None]
    assert words(text, DEVICE="npu") == ["train", "1", "3"]


def test_a_command_in_an_open_branch_is_not_certain() -> None:
    script = read("if nvidia-smi; then train a; else train b; fi")
    assert [(text_of(run.words[1]), run.certain) for run in script.launches] == [("a", False), ("b", False)]


@pytest.mark.parametrize(
    "text",
    [
        'sbatch -N 2 --wrap="train $A x"',
        'sbatch --wrap "train $A x"',
        "sbatch -N 2 <<END\n#!/bin/bash\n#SBATCH -t 1\ntrain $A x\nEND",
        'COMMAND="train $A x" CONTAINER=image sbatch --nodes=2 ray.sub',
        'export COMMAND="train $A x"\nsbatch ray.sub',
        'ssh -p 22 host "cd /x; train $A x"',
        "ssh host <<END\ntrain $A x\nEND",
        "docker exec -i container bash <<END\ntrain $A x\nEND",
        'tmux new-session -d -s name "train $A x"',
    ],
)
def test_texts_for_other_machines_are_followed(text: str) -> None:
    assert words(f"A=1\n{text}") == ["train", "1", "x"]


def test_functions_and_texts_that_grow_without_end_are_cut() -> None:
    script = read('f() { f; f; train a; }\nf\nA=\'eval "$A"; eval "$A"\'\neval "$A"\ntrain b')
    assert len(script.launches) < 500
    assert text_of(script.launches[-1].words[1]) == "b"
    assert "the function 'f' is not followed" in {unread.reason for unread in script.unread}


def test_a_loop_over_known_words_starts_a_run_for_each() -> None:
    script = read("for lr in 1 2; do for n in 4 8; do train lr=$lr n=$n; done; done\nfor i in 1 2 3; do train x; done")
    assert [[text_of(word) for word in run.words[1:]] for run in script.launches] == [
        *([f"lr={lr}", f"n={n}"] for lr in "12" for n in "48"),
        ["x"],
    ]
    assert all(run.certain for run in script.launches)


def test_what_a_loop_and_a_branch_call_is_not_certain() -> None:
    script = read("f() { train $1; }\nfor i in $L; do f a; done\nif nvidia-smi; then f b; fi\nf c")
    assert [(text_of(run.words[1]), run.certain) for run in script.launches] == [
        ("a", False),
        ("b", False),
        ("c", True),
    ]


@pytest.mark.parametrize(
    ("text", "places"),
    [
        ('N=8\nA="train size=$N"\neval "$A"', [(2, 9, 14), (1, 2, 3)]),
        ('bash -c "cd /x && \\\n  train \\\n    size=8"', [(3, 4, 10)]),
        ("bash -c 'eval \"train size=8\"'", [(1, 21, 27)]),
        ("f() {\n  train size=$1\n}\nf 8", [(2, 8, 13), (4, 2, 3)]),
    ],
)
def test_a_followed_text_has_the_places_where_it_is_written(text: str, places: list[tuple[int, int, int]]) -> None:
    [launch] = read(text).launches
    spans = [piece.span for piece in launch.words[1]]
    assert [(span.line, span.column, span.end_column) for span in spans] == places
    lines = text.split("\n")
    assert "".join(lines[line - 1][start:end] for line, start, end in places) == "size=8"


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("echo", 1, "the script starts no trainer"),
        ("cd /x\npython launch.py 'python trainer'", 2, "'trainer' in a text within quotes"),
        ("# trainer\ncat > run.sh <<END\npython trainer\nEND\nbash run.sh", 3, "line 3 names 'trainer'"),
        ("source env.sh\nbash train.sh --fast", 2, "it runs 'train.sh'"),
        ("set -x\nsource env.sh", 2, "as far as it is followed: 'env.sh' is read by the script"),
    ],
)
def test_a_script_without_a_run_says_where_one_may_be(text: str, line: int, words: str) -> None:
    error = read(text).without_run("no trainer", ["trainer"])
    assert words in error.message
    assert error.span.line == line  # type: ignore[attr-defined]  # a ReadError has a span


def test_nothing_is_executed(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    read(f"A=$(touch {mark})\ntouch {mark}\n`touch {mark}`\n[ $(touch {mark}) ] && train\ntrain <(touch {mark})")
    assert not mark.exists()


def test_a_value_has_the_place_where_it_is_written() -> None:
    text = "N=${N:-1024}\ntrain size=$N"
    word = read(text).launches[0].words[1]
    assert [(piece.span.line, piece.span.column, piece.span.end_column) for piece in word] == [(2, 6, 11), (1, 7, 11)]


@pytest.mark.parametrize(
    "text",
    [
        "train 'a", 'train "a', "if true; then train", "case a in b) train", "A=(1 2", "train $(a", "train ${a", "fi",
        "train `a", "train )", "((" * 200, "$(" * 200, "${a:-" * 200 + "}" * 200, "{ " * 200,
    ],
)  # fmt: skip
def test_what_no_shell_takes_is_an_error_with_its_place(text: str) -> None:
    with pytest.raises(ReadError, match="HF970: no shell script") as raised:
        read(text)
    assert raised.value.span.line == 1  # type: ignore[attr-defined]  # a ReadError has a span


@given(st.text(alphabet="ab $\"'`(){}[];|&<>\n\\#=:-*?!if then fi case esac do", max_size=60))
def test_any_text_is_read_or_refused(text: str) -> None:
    with suppress(ReadError):
        read(text)


def test_values_that_grow_without_end_become_unknown() -> None:
    text = "A=0123456789\n" + "A=$A$A\n" * 60 + "train $A"
    assert words(text) == ["train", None]
