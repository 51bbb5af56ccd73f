"""The open word classes behind the labels, their common members, written for this project; imports no torch.

Verbs stand in their base forms and nouns in the singular, which `lexicon.py` inflects. A word may stand in several.
"""

from __future__ import annotations


def split(text: str) -> frozenset[str]:
    return frozenset(text.split())


# ---- open classes: base forms of verbs (inflected by lexicon.py) ----------------------------------------------------

VERBS: dict[str, frozenset[str]] = {
    "cognition verb": split(
        "think know believe suppose understand remember forget imagine consider guess wonder doubt expect hope fear "
        "wish mean realise realize recognise recognize reflect conclude decide judge fancy conceive perceive reckon "
        "suspect assume learn trust recollect recall ponder intend presume conjecture dream desire feel notice"
    ),
    "speech verb": split(
        "say tell speak talk ask answer reply cry exclaim whisper murmur shout call declare remark observe inquire "
        "enquire explain return add repeat mutter demand announce mention suggest state relate promise beg pray "
        "swear protest confess assure command order report argue propose express utter describe interrupt continue "
        "respond groan sigh growl gasp scream sob laugh retort insist urge"
    ),
    "perception verb": split(
        "see look hear listen watch feel notice observe perceive smell taste gaze stare glance behold view witness "
        "examine regard peer spy sense eye survey discern distinguish"
    ),
    "motion verb": split(
        "go come run walk ride drive fly swim march pass move enter leave return arrive depart follow rush hurry "
        "climb rise fall descend ascend travel cross approach advance retreat escape jump leap step turn wander "
        "crawl creep slip slide roll sail row hasten proceed start flee gallop pace spring reach draw stroll retire "
        "withdraw"
    ),
    "action verb": split(
        "take get make give put bring hold keep carry throw pull push cut break open close shut build catch send "
        "pick strike hit beat kick lift raise drop set lay place use work play eat drink write read pay buy sell win "
        "lose fight kill shoot save help lead show turn touch press seize grasp fling tear burn wash dress cover "
        "fill hang bind tie fix gather collect fetch hand receive offer"
    ),
    "posture verb": split("sit stand lie rest lean kneel stay remain wait sleep hang stoop bend stop pause settle"),
    "emotion verb": split(
        "love hate like fear enjoy admire regret dread despise envy pity weep laugh smile cry blush tremble grieve "
        "rejoice mourn hope wish long desire care mind suffer please delight amuse annoy vex frighten shock surprise "
        "astonish"
    ),
    "begin or end verb": split("begin start commence cease stop end finish continue keep resume go set fall burst"),
    "verb of having": split(
        "have possess own hold keep want need lack contain include belong obtain gain acquire receive"
    ),
}

# ---- open classes: words as they stand; nouns also take a plural ----------------------------------------------------

NOUNS: dict[str, frozenset[str]] = {
    "time": split(
        "time day night morning evening afternoon noon midnight hour minute second moment week month year century "
        "age date today tomorrow yesterday tonight monday tuesday wednesday thursday friday saturday sunday january "
        "february march april may june july august september october november december spring summer autumn winter "
        "season dawn dusk sunset sunrise now then soon later early late ago before after instant period while "
        "fortnight twilight past present future clock christmas easter meanwhile presently immediately once since "
        "daily forever lately recently already yet afterwards o'clock decade eve daylight interval"
    ),
    "place": split(
        "london england france paris america rome italy germany spain russia europe asia africa india china egypt "
        "greece scotland ireland wales britain york boston chicago washington california canada australia japan "
        "mexico peru portugal kenya thailand turkey austria switzerland holland edinburgh dublin oxford cambridge "
        "bath manchester liverpool venice florence naples berlin vienna st. petersburg moscow jerusalem philadelphia "
        "virginia texas kentucky ohio orleans mississippi thames brazil norway sweden denmark poland hungary "
        "portsmouth bristol kent essex sussex devonshire yorkshire"
    ),
    "location": split(
        "house home room street road town city village country county land place world earth church school hall "
        "garden field hill mountain valley river lake sea shore coast island forest wood bridge station shop office "
        "court castle palace prison hotel inn farm park square lane path kitchen parlour library chamber corridor "
        "staircase gate door cottage cabin camp tent cave desert plain plateau harbour port ship boat market bank "
        "theatre hospital university college yard stable barn cellar attic floor roof wall window corner north south "
        "east west"
    ),
    "person name": split(
        "john mary william james george charles henry thomas robert edward richard joseph david samuel peter paul "
        "jack tom jim joe bill ben harry frank fred arthur walter philip alfred louis louisa anne anna ann elizabeth "
        "jane emma alice margaret sarah catherine kate kitty lucy ellen helen emily charlotte fanny frances amy beth "
        "jo meg daisy dan ted dora martha rachel ruth rose clara julia maria susan sophia agnes esther laura isabel "
        "florence grace edith nelly polly peggy molly bella matilda deborah rebecca hannah stephen simon andrew "
        "anthony matthew mark luke adam abraham isaac jacob moses solomon daniel michael martin hugh ralph roger "
        "roland oliver oscar edgar edmund francis frederick godfrey leonard lewis maurice nicholas oswald patrick "
        "miss brown smith jones johnson wilson thompson taylor white black green hill scott napoleon caesar "
        "shakespeare milton brooke"
    ),
    "title": split(
        "mr mrs miss ms dr sir madam ma'am lord lady master mistress captain colonel major general lieutenant "
        "sergeant professor doctor reverend rev bishop king queen prince princess duke duchess earl count countess "
        "baron baronet judge president admiral uncle aunt father mother brother sister monsieur madame mademoiselle "
        "signor saint st squire esq messrs"
    ),
    "kinship": split(
        "father mother brother sister son daughter husband wife child baby uncle aunt cousin nephew niece "
        "grandfather grandmother parent papa mamma mama widow orphan twin bride bridegroom family relative relation "
        "mother-in-law sister-in-law brother-in-law father-in-law grandson granddaughter daddy dad mum"
    ),
    "person": split(
        "man woman boy girl child person people friend gentleman lady fellow servant master mistress stranger "
        "soldier sailor officer doctor lawyer priest clergyman teacher student pupil king queen lord farmer workman "
        "hand neighbour neighbor guest visitor traveller enemy thief murderer prisoner companion lover maid nurse "
        "cook policeman clerk merchant banker author poet artist player poor rich creature soul youth lad lass folk "
        "folks crowd party company nation citizen indian native slave nobody everyone anybody men women children "
        "gentlemen ladies"
    ),
    "body part": split(
        "head face eye ear nose mouth lip tooth teeth tongue cheek chin brow forehead hair neck throat shoulder arm "
        "hand finger thumb fist breast chest heart back side waist knee leg foot feet toe skin bone blood body brain "
        "stomach lap elbow wrist ankle heel beard eyelid eyebrow bosom limb"
    ),
    "animal": split(
        "horse dog cat bird fish cow bull sheep lamb goat pig wolf bear lion tiger fox rabbit mouse rat snake monkey "
        "ape elephant hen cock duck goose eagle hawk owl dove bee ant fly spider butterfly beast animal creature "
        "pony donkey mule ox deer whale serpent insect parrot puppy kitten dinosaur"
    ),
    "nature": split(
        "sun moon star sky cloud rain snow wind storm thunder lightning sea ocean wave river stream lake tree leaf "
        "leaves flower grass rock stone sand mountain hill valley forest wood field earth ground air water fire "
        "light darkness shadow mist fog ice frost cliff swamp rose branch root bush plant weather sunlight sunshine "
        "moonlight tide"
    ),
    "clothing": split(
        "coat dress hat cap shoe boot glove shirt gown cloak shawl bonnet ribbon silk collar sleeve pocket trousers "
        "skirt apron veil handkerchief lace button ring jewel watch cane stick umbrella uniform waistcoat slippers "
        "stockings"
    ),
    "food": split(
        "bread meat tea coffee milk wine beer water cake pie dinner supper breakfast lunch meal egg butter cheese "
        "sugar salt fruit apple fish beef mutton soup brandy rum whisky food bottle glass cup plate dish spoon knife "
        "fork"
    ),
    "furniture": split(
        "table chair bed sofa desk lamp candle mirror carpet curtain shelf cupboard drawer bench stool clock piano "
        "picture door window fire fireplace stove box trunk chest basket bag key lock"
    ),
    "feeling": split(
        "love hate joy sorrow grief anger fear hope despair pride shame pity pleasure pain happiness misery delight "
        "jealousy envy surprise astonishment wonder admiration contempt gratitude sympathy affection passion anxiety "
        "terror horror courage tenderness regret remorse disgust excitement comfort melancholy emotion feeling "
        "spirits"
    ),
    "mind": split(
        "mind thought idea opinion reason sense memory imagination knowledge understanding judgment belief doubt "
        "question answer truth fact notion view purpose intention plan design wish desire will attention conscience "
        "soul spirit intelligence wisdom fancy dream reflection conviction faith"
    ),
    "money": split(
        "money pound shilling penny pence dollar cent coin gold silver bank debt price cost value wealth fortune "
        "income rent wage salary fee tax bill cheque purse trade business property estate capital interest profit "
        "loss"
    ),
    "government": split(
        "government law parliament congress president king state nation constitution court judge crown vote election "
        "minister party policy treaty army navy war peace power authority office senate republic empire union "
        "citizen rights legislation administration council bill act assembly province district political national "
        "federal"
    ),
    "war": split(
        "war battle army soldier gun rifle sword pistol bullet shot powder enemy attack defence fight victory defeat "
        "wound captain officer regiment troop cannon spear bow arrow knife weapon siege peace blood kill dead"
    ),
    "religion": split(
        "god lord heaven hell christ jesus church prayer soul spirit angel devil bible gospel faith sin priest "
        "bishop saint holy sacred divine blessed christian religion religious worship sermon preach pray clergyman "
        "parish"
    ),
    "writing": split(
        "letter book paper page word line sentence story tale poem novel newspaper note pen ink pencil card message "
        "telegram chapter verse volume journal diary document list map name title article write read"
    ),
    "work": split(
        "work business trade factory mill machine engine hand hands labour labor job duty task office shop tool "
        "wages master employer workman union strike industry manufacture profession employment service"
    ),
    "sound": split(
        "sound noise voice cry shout whisper song music bell drum roar crash murmur echo silence laugh laughter sigh "
        "groan scream tone note ring knock step footstep whistle silent loud quiet"
    ),
}

# ---- adjectives and adverbs as they stand ---------------------------------------------------------------------------

ADJECTIVES: dict[str, frozenset[str]] = {
    "positive valence": split(
        "good great best better nice fine happy glad beautiful pretty lovely sweet kind dear gentle brave noble "
        "honest wise clever bright pleasant delightful charming excellent perfect splendid wonderful fair true right "
        "well love joy pleasure hope comfort success beauty delight favour honour kindness happiness grateful "
        "pleased fortunate lucky rich strong healthy warm cheerful agreeable handsome admirable amiable respectable "
        "generous tender graceful elegant glorious magnificent sublime blessed welcome safe smile laugh friend "
        "triumph virtue charm peace freedom comfortable satisfied delighted proud worthy"
    ),
    "negative valence": split(
        "bad evil wrong ill worse worst poor sad unhappy miserable wretched cruel wicked horrible terrible dreadful "
        "awful ugly hate fear pain sorrow grief death dead die kill murder danger dangerous trouble anger angry fool "
        "foolish stupid shame guilt guilty crime sin misery despair hopeless bitter cold dark lost lonely sick "
        "disease wound hurt hard weak false dirty vile mean mad afraid frightened anxious disappointed disgust "
        "disagreeable unpleasant impossible useless vain unfortunate ruin wrongs enemy fault failure loss tears cry "
        "gloomy savage fierce desperate dull tired weary ashamed horror terror"
    ),
    "colour": split(
        "red blue green yellow white black brown grey gray purple pink scarlet crimson golden gold silver orange "
        "violet pale dark bright rosy blonde amber ivory"
    ),
    "size": split(
        "great small large little big huge tiny vast long short tall high low wide broad narrow deep thick thin "
        "immense enormous heavy light slight full empty whole entire main"
    ),
    "age": split(
        "old young new ancient modern elder eldest younger youngest aged early late former recent fresh childish"
    ),
    "nationality": split(
        "english french german spanish italian american irish scotch scottish british russian roman greek indian "
        "chinese dutch turkish african european portuguese japanese jewish christian latin welsh swiss prussian "
        "austrian"
    ),
    "certainty": split(
        "perhaps probably possibly certainly surely doubtless undoubtedly indeed really truly sure certain clear "
        "clearly evident evidently obvious obviously likely apparently maybe possible impossible probable actually "
        "positively"
    ),
    "sameness or difference": split(
        "same other different another similar like unlike equal opposite contrary else alike various such difference"
    ),
}
