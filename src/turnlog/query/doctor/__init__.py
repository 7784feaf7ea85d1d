"""Doctor: what a store holds, what is wrong with it, and what to do about each."""

from turnlog.query.doctor.examination import collect_blobs, examine
from turnlog.query.doctor.report import Concern, Report

__all__ = ["Concern", "Report", "collect_blobs", "examine"]
