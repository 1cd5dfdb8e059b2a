"""Nodes with GPUs of unknown memory."""

import hfdsl as hf

cluster = hf.Cluster(hf.Nodes(16, gpus=8, cpus=96))  # <-
