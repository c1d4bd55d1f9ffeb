"""The peft backend: any architecture and every option that needs autograd, over the PEFT model itself."""
