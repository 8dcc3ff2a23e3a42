"""The wide search: more heads than the layer has, from random scores, and then without those that it can do without."""

from attnlearn.recovery.wide._many import student_work
from attnlearn.recovery.wide._search import search
from attnlearn.recovery.wide._starts import widths
from attnlearn.recovery.wide._stochastic import Course, Source, descend, normal_equations
from attnlearn.recovery.wide._student import Student

__all__ = [
    "Course",
    "Source",
    "Student",
    "descend",
    "normal_equations",
    "search",
    "student_work",
    "widths",
]
