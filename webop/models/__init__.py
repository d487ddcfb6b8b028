"""Models: kinds of objects as pydantic classes, and what follows from them.

- :mod:`webop.models.model`: the base classes, and :func:`resource`, which says of which kind a
  class is.
- :mod:`webop.models.cel_rules`: CEL rules, and markers for lists and maps.
- :mod:`webop.models.condition_fields`: conditions as the type of a field;
  :mod:`webop.models.validity_condition`: the one that says whether an object fits.
- :mod:`webop.models.schema`: the structural schema of a class.
- :mod:`webop.models.crds`: CustomResourceDefinitions of models.
- :mod:`webop.models.crd_comparison`: what a new CustomResourceDefinition breaks.
- :mod:`webop.models.fitting`: objects to models and back, with errors that name the field.
- :mod:`webop.models.versions`: the versions of a kind, and the ways between them.
- :mod:`webop.models.arguments`: arguments of handlers as their annotations say.
"""
