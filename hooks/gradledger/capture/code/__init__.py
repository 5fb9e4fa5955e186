"""The lines of the script that findings point at."""
