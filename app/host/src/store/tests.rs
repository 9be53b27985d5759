use std::fs;

use fjall::{OwnedWriteBatch, PersistMode};
use holdfast_store::{KvRead, MemKv, Order, WriteSet};

use super::disk::Sink;
use super::*;

fn writes<const N: usize>(rows: [(&str, Option<&str>); N]) -> WriteSet {
    rows.into_iter().map(|(key, value)| (key.into(), value.map(Into::into))).collect()
}

fn all(db: &dyn LocalDb, start: &str, end: Option<&str>, order: Order) -> Vec<String> {
    db.scan(start.as_bytes(), end.map(str::as_bytes), order)
        .map(|row| {
            let (key, value) = row.unwrap();
            format!("{}={}", String::from_utf8(key).unwrap(), String::from_utf8(value).unwrap())
        })
        .collect()
}

/// Every store behaves as the store of the modules.
fn conforms(db: &dyn LocalDb) {
    use holdfast_store::KvWrite;
    let mut model = MemKv::default();
    let steps = [
        writes([("b", Some("1")), ("a", Some("2")), ("c", Some(""))]),
        writes([("b", None), ("bb", Some("3")), ("zz", None)]),
        writes([("a", Some("4")), ("b", Some("5"))]),
        writes([]),
    ];
    for step in steps {
        for (key, value) in &step {
            match value {
                Some(value) => model.set(key, value).unwrap(),
                None => model.remove(key).unwrap(),
            }
        }
        db.commit(step, true).unwrap();
        for order in [Order::Ascending, Order::Descending] {
            for (start, end) in
                [("", None), ("a", Some("bb")), ("b", Some("b")), ("c", Some("a")), ("bb", None)]
            {
                let (start, end): (&[u8], _) = (start.as_bytes(), end.map(str::as_bytes));
                let found: Vec<_> = db.scan(start, end, order).map(Result::unwrap).collect();
                let wanted: Vec<_> = model.scan(start, end, order).map(Result::unwrap).collect();
                assert_eq!(found, wanted);
            }
        }
        for key in ["a", "b", "bb", "c", "x"] {
            assert_eq!(db.get(key.as_bytes()), model.get(key.as_bytes()));
        }
    }
}

#[test]
fn stores_in_memory_and_on_disk_behave_as_the_store_of_the_modules() {
    conforms(&MemDb::new());
    let folder = tempfile::tempdir().unwrap();
    conforms(&FjallDb::open(folder.path(), "test").unwrap());
}

#[test]
fn what_is_above_a_limit_is_refused_and_changes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let disk = FjallDb::open(folder.path(), "test").unwrap();
    let memory = MemDb::new();
    for db in [&disk as &dyn LocalDb, &memory] {
        db.commit(writes([("a", Some("1"))]), true).unwrap();
        let long = WriteSet::from([(b"a".to_vec(), None), (vec![7; KEY_MAX + 1], Some(Vec::new()))]);
        let refused = DbError::TooLarge { what: "key", bytes: KEY_MAX + 1, limit: KEY_MAX };
        assert_eq!(db.commit(long, true), Err(refused));
        let large = WriteSet::from([(b"a".to_vec(), Some(vec![0; VALUE_MAX + 1]))]);
        let refused = DbError::TooLarge { what: "value", bytes: VALUE_MAX + 1, limit: VALUE_MAX };
        assert_eq!(db.commit(large, true), Err(refused));
        let unnamed = WriteSet::from([(Vec::new(), None)]);
        assert_eq!(db.commit(unnamed, true), Err(DbError::EmptyKey));
        assert_eq!(all(db, "", None, Order::Ascending), ["a=1"]);
        db.commit(writes([("b", Some("2"))]), true).unwrap();
    }
}

#[test]
fn a_power_cut_keeps_what_was_synced_and_everything_before_it() {
    let first = MemDb::new();
    first.commit(writes([("a", Some("1"))]), false).unwrap();
    first.commit(writes([("b", Some("2"))]), true).unwrap();
    first.commit(writes([("c", Some("3")), ("a", None)]), false).unwrap();
    let kept = first.copy().reopen(false);
    assert_eq!(all(&kept, "", None, Order::Ascending), ["b=2", "c=3"]);
    let cut = first.reopen(true);
    assert_eq!(all(&cut, "", None, Order::Ascending), ["a=1", "b=2"]);
    assert_eq!(first.commit(writes([]), true).unwrap_err().code(), 7, "its process has ended");
}

#[test]
fn a_planned_fault_leaves_nothing_behind_or_everything() {
    for (fault, kept, code) in [
        (Fault::Fail, false, 7),
        (Fault::Full, false, 4),
        (Fault::CrashBefore, false, 7),
        (Fault::CrashAfter, true, 7),
    ] {
        let db = MemDb::new();
        db.fault(2, fault);
        db.commit(writes([("a", Some("1"))]), true).unwrap();
        assert_eq!(db.commit(writes([("b", Some("2"))]), true).unwrap_err().code(), code);
        assert_eq!(
            db.commit(writes([("c", Some("3"))]), true).unwrap_err().code(),
            code,
            "until it is reopened"
        );
        let next = db.reopen(true);
        let wanted: &[&str] = if kept { &["a=1", "b=2"] } else { &["a=1"] };
        assert_eq!(all(&next, "", None, Order::Ascending), wanted, "{fault:?}");
        next.commit(writes([("c", Some("3"))]), true).unwrap();
    }
}

#[test]
fn a_folder_is_open_once_survives_its_process_and_is_of_one_purpose() {
    let folder = tempfile::tempdir().unwrap();
    let db = FjallDb::open(folder.path(), "host").unwrap();
    db.commit(writes([("a", Some("1"))]), true).unwrap();
    db.commit(writes([("b", Some("2"))]), false).unwrap();
    let second = FjallDb::open(folder.path(), "host").err().unwrap();
    assert_eq!(second, DbError::Locked { path: folder.path().into() });
    drop(db);
    let other = FjallDb::open(folder.path(), "gateway").err().unwrap();
    assert!(matches!(&other, DbError::Format { found, .. } if found == "host store 1"), "{other}");
    let db = FjallDb::open(folder.path(), "host").unwrap();
    assert_eq!(all(&db, "", None, Order::Ascending), ["a=1", "b=2"]);
}

#[test]
fn a_damaged_folder_is_said_to_be_corrupt() {
    let folder = tempfile::tempdir().unwrap();
    let db = FjallDb::open(folder.path(), "host").unwrap();
    db.commit(writes([("a", Some("1"))]), true).unwrap();
    drop(db);
    for entry in fs::read_dir(folder.path()).unwrap() {
        let path = entry.unwrap().path();
        if path.is_file()
            && path.file_name().unwrap() != "lock"
            && path.extension().is_none_or(|e| e != "jnl")
        {
            fs::write(&path, b"not what it was").unwrap();
        }
    }
    let error = FjallDb::open(folder.path(), "host").err().unwrap();
    assert!(matches!(error, DbError::Corrupt { .. } | DbError::Format { .. }), "{error}");
}

/// A disk that is full, or broken.
struct Bad(fn() -> fjall::Error);

impl Sink for Bad {
    fn write(&self, _: OwnedWriteBatch, _: PersistMode) -> fjall::Result<()> {
        Err((self.0)())
    }
}

#[test]
fn a_full_disk_is_named_and_no_write_is_taken_after_it() {
    let full = || fjall::Error::Io(std::io::ErrorKind::StorageFull.into());
    let folder = tempfile::tempdir().unwrap();
    drop(FjallDb::open(folder.path(), "host").unwrap());
    let db = FjallDb::open_with(folder.path(), "host", Box::new(Bad(full))).unwrap();
    assert_eq!(db.commit(writes([("a", Some("1"))]), true).unwrap_err().code(), 4);
    assert_eq!(db.commit(writes([("a", Some("1"))]), true).unwrap_err().code(), 7);
    drop(db);
    let empty = tempfile::tempdir().unwrap();
    assert_eq!(FjallDb::open_with(empty.path(), "host", Box::new(Bad(full))).err().unwrap().code(), 4);
    // What was never begun is no loss.
    drop(FjallDb::open(empty.path(), "host").unwrap());
    let db = FjallDb::open_with(folder.path(), "host", Box::new(Bad(|| fjall::Error::Poisoned))).unwrap();
    assert_eq!(db.commit(writes([("a", Some("1"))]), true).unwrap_err().code(), 7);
}

/// The journal of a store with many rows, each synced.
fn journal(folder: &std::path::Path) -> std::path::PathBuf {
    let db = FjallDb::open(folder, "host").unwrap();
    for n in 0..50 {
        let key = format!("key {n}");
        db.commit(writes([(key.as_str(), Some("a value of some length"))]), true).unwrap();
    }
    drop(db);
    let journals = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let mut journals: Vec<_> = journals.filter(|path| path.extension().is_some_and(|e| e == "jnl")).collect();
    assert_eq!(journals.len(), 1, "{journals:?}");
    journals.remove(0)
}

#[test]
fn damage_at_the_start_or_in_the_middle_of_the_only_journal_is_corrupt_and_never_an_empty_store() {
    for damaged in [0..1, 0..64, 0..400, 100..400, 700..701] {
        let folder = tempfile::tempdir().unwrap();
        let path = journal(folder.path());
        let mut bytes = fs::read(&path).unwrap();
        bytes[damaged.clone()].iter_mut().for_each(|byte| *byte ^= 0xff);
        fs::write(&path, bytes).unwrap();
        let error = FjallDb::open(folder.path(), "host").err().expect("refused");
        assert!(matches!(error, DbError::Corrupt { .. }), "{damaged:?}: {error}");
    }
}

#[test]
fn what_is_wrong_with_a_folder_is_said_in_words_of_the_operator() {
    for spoil in ["version, gone", "version, other", "version, newer", "journal, gone", "tables, gone"] {
        let folder = tempfile::tempdir().unwrap();
        drop(journal(folder.path()));
        let version = folder.path().join("version");
        match spoil {
            "version, gone" => fs::remove_file(&version).unwrap(),
            "version, other" => fs::write(&version, b"not what it was").unwrap(),
            "version, newer" => fs::write(&version, b"FJL\x02").unwrap(),
            "journal, gone" => fs::remove_file(folder.path().join("0.jnl")).unwrap(),
            _ => fs::remove_dir_all(folder.path().join("keyspaces")).unwrap(),
        }
        let error = FjallDb::open(folder.path(), "host").err().expect("refused");
        assert!(matches!(error, DbError::Corrupt { .. } | DbError::Format { .. }), "{spoil}: {error:?}");
        let text = error.to_string();
        for word in ["Error", "None", "Some", "{", "kind:"] {
            assert!(!text.contains(word), "{spoil}: {text}");
        }
        assert!(text.contains(folder.path().to_str().unwrap()), "{text}");
    }
}
