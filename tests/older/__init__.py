"""Places made by earlier versions, which every version opens."""
