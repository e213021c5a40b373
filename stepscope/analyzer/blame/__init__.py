"""Whose fault is the waiting, and what did each cause cost?"""
