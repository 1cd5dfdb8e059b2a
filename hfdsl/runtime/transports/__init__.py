"""How tensors get from one process to another: serialized, through shared memory, by CUDA IPC, or as a broadcast."""
