"""What GPUs cost: whose time each card's was, its energy and its price."""
