"""Settings of this process that change its speed, read at no cost: of torch, loaders, models, wrappers, trainers."""
