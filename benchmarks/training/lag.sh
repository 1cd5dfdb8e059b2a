#!/usr/bin/env bash
# GRPO of a Llama of 0.5B with a lag of 4 and without a queue, from the same demonstrations: what a lag costs in learning.
# Two runs share a GPU, so it needs 40 GB of memory; the actor, the sampler and the reference take turns on it.
#   SEEDS="1 2 3" bash benchmarks/training/lag.sh && grep -o 'held-out solved [0-9.]*' runs/lag/none-*.log runs/lag/4-*.log
set -eu
STEPS=${STEPS:-100}
RATE=${RATE:-1e-5}
SEEDS=${SEEDS:-1}
GPU=${GPU:-true}
HFDSL=${HFDSL:-hfdsl}
LOGS=runs/lag

# trains NAME FILE ARGUMENTS..: one run, with a log of its own
trains() {
  local name=$1
  shift
  $HFDSL train "$@" --set output="$LOGS/$name" --set actor.training.autocast=bfloat16 > "$LOGS/$name.log" 2>&1
}

mkdir -p $LOGS
python examples/mathematics/problems.py
llama=()
for field in hidden_size=2048 intermediate_size=5632 num_hidden_layers=10 num_attention_heads=16 num_key_value_heads=16 ${LLAMA:-}; do
  llama+=(--set "actor.model.config.$field")
done
trains demonstrations examples/mathematics/supervised.toml "${llama[@]}" --set steps=300 --set deployment.pools.all.gpu="$GPU" \
  --set actor.training.optimizer.learning_rate=3e-4
$HFDSL export $LOGS/demonstrations -o runs/mathematics/model

for seed in $SEEDS; do
  same=(--set steps="$STEPS" --set seed="$seed" --set evaluation.every=10 --set actor.training.optimizer.learning_rate="$RATE")
  trains "none-$seed" examples/mathematics/grpo.toml "${same[@]}" --set algorithm=hfdsl.rl.dataflows.grpo:grpo --set options.updates=2 \
    --set options.loss.kl=0.001 --set 'reference={model="$actor.model",autocast="bfloat16"}' --set deployment.pools.all.gpu="$GPU" &
  trains "4-$seed" examples/lagged_grpo/grpo.toml "${same[@]}" --set deployment.pools.trainer.gpu="$GPU" \
    --set deployment.pools.engine.gpu="$GPU" --set sampler.autocast=bfloat16 --set reference.autocast=bfloat16 &
  wait
done
