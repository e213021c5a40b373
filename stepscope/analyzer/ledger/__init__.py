"""Under which heading does each instant of one rank fall, as far as that rank alone can tell?"""
