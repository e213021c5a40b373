"""How is a training measured whose code nobody touches? What `stepscope run` brings into the processes it starts."""
