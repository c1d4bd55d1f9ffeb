"""The fast engine: a short training loop of our own for QLoRA on decoders of the Llama kind.

A micro-batch is one flat row of tokens, its documents end to end and without padding. Forward and backward are written
out by hand, so that what is kept between them is explicit, nothing is computed that training does not need (the base
is frozen), and the gradients of all adapters lie in one buffer.

    trainer.py    the loop: optimiser steps, evaluation, commits
    model.py      embedding -> layers -> head, and back
    layer.py      one decoder layer: attention half, MLP half
    mlp/          the second half: a gated MLP, or a mixture of experts
    linear.py     frozen linear layers that share an input, with their adapters
    weights.py    frozen matrices, dense for the time of a product or kept so
    adapters.py   values and gradients of all adapters, flat
    head.py       output head and cross entropy on supervised positions
    batch.py      the tensors of a micro-batch (keys.py: what dropout follows from)
    attention/    attention over documents, one file a backend
    kernels/      the elementwise rest, in torch and in Triton
    families/     how each kind of model is read, one file a family
"""
