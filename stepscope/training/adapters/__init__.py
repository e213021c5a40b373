"""How do other trainers' loops tell their steps? One module a framework, each imported by who has that framework."""
