"""Which steps are traced, who may ask for that, and how does the trace reach the disk?"""
