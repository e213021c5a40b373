"""What held the memory, when it ran out and when asked?"""
