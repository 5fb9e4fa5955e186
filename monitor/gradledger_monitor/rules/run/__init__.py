"""Does the run move?"""
