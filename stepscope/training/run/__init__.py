"""Who is this process, what is its run called, and where does what lie?"""
