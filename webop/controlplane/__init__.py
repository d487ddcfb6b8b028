"""A real local Kubernetes control plane: etcd and kube-apiserver as local processes, no Docker.

Flow: :mod:`.binaries` finds, downloads or builds the executables (by :mod:`.download` and
:mod:`.build`) into the folders of :mod:`.cache`; :mod:`.cluster` makes the certificates and
tokens of one run (:mod:`.credentials`), starts the processes (:mod:`.runtime`), waits until the
API server answers (:mod:`.requests`), and writes down what it has started (:mod:`.state`), so
that :mod:`.reaper` can end it after any crash.

The command line (``webop cluster``) and ``webop.testing`` stand on top of this package.
Nothing is imported here, so that asking for one room does not load the others.
"""
