"""The error family: every mistake of a user is one of these, with a stable code.

``hfdsl explain CODE`` prints the rule behind a code, with a failing and a mended example.
"""

from __future__ import annotations


class HfError(Exception):
    """An error that hfdsl raises on purpose: ``code`` names the rule, the message names the user's things.

    >>> str(HfError("HF310", "rows 10 cannot be split over 4 ranks"))
    'HF310: rows 10 cannot be split over 4 ranks'
    """

    span: object = None  # the place in the user's text, where more is known than a traceback says
    column: str = ""  # the column of a record whose declaration is wrong
    field: str = ""  # the dotted name of the field of a configuration that is wrong
    changes: tuple[object, ...] = ()  # changes of the configuration that may remove the error; they have not been tried
    help: tuple[str, ...] = ()  # those that were tried and remove it, as a finding has them
    fixes: tuple[object, ...] = ()  # their edits, the same

    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message

    def __reduce__(self) -> tuple[object, ...]:
        # Exceptions cross process borders; the default would replay ``args``, one joined text, as two arguments.
        return (_restore, (type(self), self.__dict__.copy(), self.args))


def _restore(cls: type[HfError], state: dict[str, object], args: tuple[object, ...]) -> HfError:
    error = cls.__new__(cls)
    error.args = args
    error.__dict__.update(state)
    return error


class HfWarning(UserWarning):
    """A doubt that hfdsl reports while a program runs: ``code`` names the rule, as that of an error does.

    >>> str(HfWarning("HF526", "Ray 3.0 is untested"))
    'HF526: Ray 3.0 is untested'
    """

    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code


class DefinitionError(HfError, TypeError):
    """A dim, batch, role method or protocol is declared in a way that has no meaning (HF1xx), or a test is (HF92x)."""


class WiringError(HfError, TypeError):
    """A value does not fit where it is used: a column, record, dtype or shape (HF2xx)."""


class SizeError(HfError, ValueError):
    """Rows or lengths do not work out (HF3xx)."""


class ProtocolError(HfError, ValueError):
    """A value does not fit the transfer protocol that it meets (HF4xx)."""


class ResourceError(HfError, RuntimeError):
    """Pools, meshes and clusters do not fit together (HF5xx)."""


class RoleError(HfError, RuntimeError):
    """A role's body raised: reported once, with role, method, rank, step and the worker's own traceback (HF806).

    Or it ended its process every time that it was run (HF842).
    """


class LostProcessError(RoleError):
    """A process died, or what it had returned is lost (HF806); HF840 if that happened too often.

    ``deaths`` are the processes that are gone, as far as known.
    """

    deaths: tuple[object, ...] = ()


class SyncError(HfError, RuntimeError):
    """Copies of one state differ, or a failed load has left one incomplete (HF770, HF771).

    ``role``, ``parameter`` and ``ranks`` say where, ``version`` in which sync of the run, from 1; 0 outside of a run.
    """

    role: str = ""
    parameter: str = ""
    ranks: tuple[int, ...] = ()
    version: int = 0


class DeadlineError(HfError, TimeoutError):
    """A wait exceeded its deadline; the message says what every rank was doing (HF807)."""


class ConfigError(HfError, ValueError):
    """A configuration, or a change of one, does not fit its fields (HF901, HF940), or a loss its columns (HF941).

    Also a folder that another run writes to (HF914).

    ``others`` are mistakes found with it.
    """

    def __init__(
        self,
        code: str,
        message: str,
        field: str = "",
        others: tuple[ConfigError, ...] = (),
        changes: tuple[object, ...] = (),
    ) -> None:
        super().__init__(code, message)
        self.field, self.others, self.changes = field, others, changes


class DataError(HfError, ValueError):
    """A row, a prompt or a tokenizer cannot be trained on (HF902 to HF904)."""


class CheckpointError(HfError, RuntimeError):
    """A state cannot be kept, or a checkpoint is not one that this run can continue from (HF905, HF906, HF908).

    Also a recording that can be replayed only where it is trusted (HF915).
    """


class PackageError(HfError, ImportError):
    """A package that an extra of hfdsl installs is missing (HF990)."""
