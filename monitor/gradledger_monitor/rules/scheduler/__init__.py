"""Does the LR schedule advance once for every optimizer step?"""
