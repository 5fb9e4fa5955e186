"""Is every epoch, and every rank, fed its own data?"""
