"""The rules of RPO as pure functions of plain numbers and ``types``. Standard library only."""
