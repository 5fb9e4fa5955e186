"""Is GradScaler used in its order, and is its scale healthy?"""
