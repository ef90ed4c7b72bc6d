"""Pipeline parallelism: the layers of one model in stages, and micro-batches that pass through them."""
