"""What a run leaves behind: facts, results, pictures, pages."""
