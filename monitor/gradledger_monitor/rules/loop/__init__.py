"""Are gradients zeroed, accumulated, clipped and stepped once per window?"""
