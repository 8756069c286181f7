"""Where a study comes from, so that another process can make the same one: a name, a file, or the study itself."""

from __future__ import annotations

import dataclasses
import hashlib
import importlib.util
import sys
from pathlib import Path

from worldmodel.study.grid import Study
from worldmodel.trajectory import suggest


@dataclasses.dataclass(frozen=True)
class Source:
    """What to load a study from.

    Attributes:
      recipe: name of a recipe of this package, or path of a Python file that defines `STUDY` (and, if it likes,
        `QUICK`, the same study at a size for first looks). The file's code is run.
      quick: take the small form.
    """

    recipe: str
    quick: bool = False

    def load(self) -> Study:
        """The study; `ValueError` where there is none of that name, or the file defines none."""
        from worldmodel.study.recipes import RECIPES

        if self.recipe in RECIPES:
            return RECIPES[self.recipe](self.quick)
        path = Path(self.recipe)
        if path.suffix != ".py":
            known = ", ".join(RECIPES)
            raise ValueError(
                f"there is no recipe {self.recipe!r}{suggest(self.recipe, RECIPES)}; recipes are {known}, "
                "and a Python file that defines STUDY"
            )
        if not path.is_file():
            raise ValueError(f"{path} does not exist; a recipe is a Python file that defines STUDY")
        return self._of(path.resolve())

    def _of(self, path: Path) -> Study:
        # One module per file: what it defines must be the same class wherever it is asked for.
        name = f"worldmodel_study_{hashlib.sha256(str(path).encode()).hexdigest()[:12]}"
        if name not in sys.modules:
            spec = importlib.util.spec_from_file_location(name, path)
            assert spec is not None and spec.loader is not None
            module = importlib.util.module_from_spec(spec)
            sys.modules[name] = module
            try:
                spec.loader.exec_module(module)
            except BaseException as error:
                del sys.modules[name]
                if isinstance(error, (SyntaxError, ImportError)):
                    raise ValueError(f"{path} cannot be loaded: {' '.join(str(error).split())}") from error
                raise
        module = sys.modules[name]
        study = getattr(module, "STUDY", None)
        if not isinstance(study, Study):
            raise ValueError(f"{path} defines no STUDY; it must be a worldmodel.study.Study")
        if not self.quick:
            return study
        return getattr(module, "QUICK", None) or study.quick()
