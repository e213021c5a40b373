"""Reader of Kineto traces, the Chrome-trace JSON of torch.profiler, of any age, layout or damage."""
