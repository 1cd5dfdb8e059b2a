"""The transports of tensors between processes: serialized, through shared memory, by CUDA IPC, or as a broadcast."""
