"""Does validation agree with training?"""
