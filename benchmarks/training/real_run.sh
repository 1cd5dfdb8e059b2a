#!/usr/bin/env bash
# The real run of docs/real-run.md with as many seeds as there are GPUs, one each and at once; then seed 0 on two and on
# four GPUs together.
#   GPUS=4 bash benchmarks/training/real_run.sh && python benchmarks/training/curves.py runs -o docs/real_run.svg
set -u
GPUS=${GPUS:-4}
STEPS=${STEPS:-150}
HFDSL=${HFDSL:-hfdsl}
CONFIGS=benchmarks/training

# on GPU,GPU.. NAME SECONDS ARGUMENTS..: one command with clusters and a log of its own
on() {
  local devices=$1 name=$2 limit=$3
  shift 3
  RAY_TMPDIR=/tmp/ray_$name CUDA_VISIBLE_DEVICES=$devices timeout -k 10 "$limit" $HFDSL "$@" > "runs/$name.log" 2>&1 ||
    echo "$name ended with $?: $(tail -n 3 "runs/$name.log" | cut -c1-300)"
}

# seeds COMMAND: the function for every seed, on a GPU each, at once
seeds() {
  for seed in $(seq 0 $((GPUS - 1))); do "$1" "$seed" & done
  wait
}

supervised() { on "$1" "supervised_seed$1" 120 train $CONFIGS/supervised.toml --set seed="$1" --set output="runs/supervised_seed$1"; }
export_model() { on "$1" "export_seed$1" 60 export "runs/supervised_seed$1" -o "runs/model_$1"; }

# trains ALGORITHM SEED DEPLOYMENT STEPS NAME GPU,GPU..
trains() {
  on "$6" "$5" 240 train "$CONFIGS/$1.toml" --set seed="$2" --set actor.model.path="runs/model_$2" \
    --set deployment="$CONFIGS/$3.toml" --set steps="$4" --set output="runs/$5"
}
grpo() { trains grpo "$1" one_gpu "$STEPS" "grpo_seed$1" "$1"; }
ppo() { trains ppo "$1" one_gpu "$STEPS" "ppo_seed$1" "$1"; }

mkdir -p runs
for part in supervised export_model grpo ppo; do
  seeds $part
  echo "$part: $SECONDS s since the start"
  [ $part != export_model ] || [ -f runs/model_0/config.json ] || exit 1
done
if [ "$GPUS" -ge 4 ]; then
  trains grpo 0 two_gpus "$STEPS" grpo_two_gpus 0,1 &
  trains ppo 0 two_gpus "$((STEPS / 2))" ppo_two_gpus 2,3 &
  wait
  trains grpo 0 four_gpus "$STEPS" grpo_four_gpus 0,1,2,3
  trains ppo 0 four_gpus "$((STEPS / 2))" ppo_four_gpus 0,1,2,3
  trains grpo 0 tensor_parallel 30 grpo_tensor_parallel 0,1,2,3
  echo "on several GPUs: $SECONDS s since the start"
fi
