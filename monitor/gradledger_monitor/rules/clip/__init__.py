"""How often does clipping engage?"""
