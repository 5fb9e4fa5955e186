"""Does the effective batch stay what it was?"""
