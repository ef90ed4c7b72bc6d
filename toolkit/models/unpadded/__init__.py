"""Layers of transformers over the tokens of a batch alone, without its padding; the results stay the same.

The first layer of a stack takes the tokens out of `[B, T, H]` as `[1, N, H]`, the last one puts them back. Embeddings,
poolers, heads and losses are not changed. Attention is computed sequence by sequence. What layers need for it, the
`Packing`, travels as their attention mask, so that recomputed layers find it again.
"""
