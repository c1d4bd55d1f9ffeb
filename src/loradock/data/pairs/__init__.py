"""Queries with passages: rendered, tokenised, drawn into batches, and given as optimiser steps."""
