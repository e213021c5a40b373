"""Step times from console logs of training frameworks: what the job printed, with whatever its launcher put around."""
