"""Nodes with GPUs of unknown memory."""

import hfdsl as hf

# good: cluster = hf.Cluster(hf.Nodes(16, gpus=8, gpu_memory_gib=80, cpus=96))
cluster = hf.Cluster(hf.Nodes(16, gpus=8, cpus=96))  # <- bad
