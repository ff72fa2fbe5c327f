"""Where an answer broke: what the log has of an error instead of its text, which may quote a
document. Pure."""


def where(error: BaseException) -> str:
    """The innermost place, as `module.py:function:line`; empty of what was never raised."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None:
        return ""
    code = trace.tb_frame.f_code
    return f"{code.co_filename.rpartition('/')[2]}:{code.co_name}:{trace.tb_lineno}"
