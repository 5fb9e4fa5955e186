"""Do gradient norms stay finite, and neither vanish nor explode?"""
