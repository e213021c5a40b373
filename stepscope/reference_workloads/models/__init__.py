"""Models that are trained: transformers (GPT, Llama), ResNet-50, their loss and number formats."""
