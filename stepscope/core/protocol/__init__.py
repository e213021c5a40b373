"""Messages between training, agents and commands, and the checked reading of their fields."""
