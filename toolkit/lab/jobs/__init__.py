"""Trainings that tools start: as processes of their own, with settings that suit what is measured."""
