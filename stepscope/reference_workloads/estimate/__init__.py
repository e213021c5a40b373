"""What will a workload cost before it runs? Memory, FLOPs, communication, bubble, time and money; needs no torch."""
