"""A model directory as one GGUF file for llama.cpp and Ollama: metadata, vocabulary and weights by their rules."""
