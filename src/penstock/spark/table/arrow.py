"""pyarrow as the tables use it. Its stubs leave element types open and know too few arguments."""

from typing import TYPE_CHECKING, Any, Final, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

arrow: Final[Any] = pa
compute: Final[Any] = pc

if TYPE_CHECKING:
    Column: TypeAlias = pa.Array[Any]
    """The values of one column."""
    Field: TypeAlias = pa.Field[Any]
else:
    Column = pa.Array
    Field = pa.Field
