"""What a process uses of its machine: processors, memory, disk, network, GPU and energy."""
